"""How good is ``nsl adapt``? Its heads and other ways, on photographs and mini-ImageNet."""
