"""The model, the posterior, the prediction and the one loop."""
