"""How good is ``nsl adapt``? Its heads beside other ways, on photographs and mini-ImageNet."""
