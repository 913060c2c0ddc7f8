"""Tables, figures and the page, made from recorded results."""
