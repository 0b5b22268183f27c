"""The composition root: builds every long-lived object and hands it on."""
