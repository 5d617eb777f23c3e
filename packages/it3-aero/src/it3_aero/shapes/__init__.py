"""What wings and cars share: graph networks on shapes, and the paper's experiment with them."""
