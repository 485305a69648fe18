"""Operations shared by tasks: convolution and orthogonal matrices."""
