"""The paper's study on top of the lab: its tracks and grids, arms and controls, registrations, analyses and results page."""
