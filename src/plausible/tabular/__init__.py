"""Tables from files: read, encoded, learnt from and predicted, with everything a prediction needs in one posterior file.

    table = read_table("houses.csv")
    fitted = fit_table(table, target="price")
    fitted.posterior.save("price.plausible")

Nothing is imported here, so that the command line answers at once: `reading`, `training`, `prediction`, `dataset`.
"""
