"""Tables, figures and one page, made from recorded results and the paper's numbers; runs nothing itself."""
