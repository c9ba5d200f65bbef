"""Seeds: modules that grow in named slots of the model, by recorded moves from stage to stage."""
