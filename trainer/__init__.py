"""The package in the container. It never imports `kit`; kit imports `trainer.contract` alone."""
