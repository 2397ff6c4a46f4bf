"""Plans to look at: one view of a plan as data, and what is made of it: a page, a trace, a local web app."""
