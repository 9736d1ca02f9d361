//! Text in lines that are indented by braces.

/// Lines, the next of which begins behind so many spaces.
#[derive(Default)]
pub(crate) struct Lines {
    text: String,
    depth: usize,
}

impl Lines {
    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        let line = line.as_ref();
        self.text.extend(std::iter::repeat_n(' ', 2 * self.depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// A line that ends with an opening brace.
    pub(crate) fn open(&mut self, line: impl AsRef<str>) {
        self.line(format!("{} {{", line.as_ref()));
        self.depth += 1;
    }

    pub(crate) fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}
