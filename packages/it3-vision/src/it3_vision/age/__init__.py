"""Ages from faces: `task` is the experiment, `faces` reads UTKFace."""
