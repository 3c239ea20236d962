"""The models as four pure steps: cell, column, global, object. See `ce.steps.model` for the interface."""
