"""The package in the container. It never imports `kit`; kit imports only `trainer.contract`."""
