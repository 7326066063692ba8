//! interner
