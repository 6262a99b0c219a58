"""Tables from files, learnt from and predicted; one posterior file holds all that a prediction needs.

    table = read_table("houses.csv")
    fitted = fit_table(table, target="price")
    fitted.posterior.save("price.plausible")

Nothing is imported here, so that the command line answers at once: `reading`, `training`, `prediction`, `dataset`.
"""
