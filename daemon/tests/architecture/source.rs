//! Reads a source file as the rules see it: its code without comments and texts, its paths, its production part.

/// One source file.
pub(crate) struct Source {
    /// Path below the crate's source directory.
    pub(crate) name: String,
    /// Path of its module, without `mod`, `lib` being empty.
    pub(crate) module: Vec<String>,
    has_docs: bool,
    /// Lines up to the tests at its end.
    production_lines: usize,
    production: String,
    all: String,
}

/// Something of the same crate that is named.
pub(crate) struct Import {
    /// Its path below `crate`.
    pub(crate) path: Vec<String>,
}

impl Source {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let stem = name.strip_suffix(".rs").unwrap_or(name);
        let mut module: Vec<_> = stem.split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| last == "mod") || module == ["lib"] {
            module.pop();
        }
        let is_test =
            module.iter().any(|part| part == "tests") || text.lines().any(|line| line.trim() == "#![cfg(test)]");
        let all = code(text);
        let lines: Vec<&str> = text.lines().collect();
        // A module in a file of its own ends nothing: what follows its line is production.
        let is_mod =
            |line: &&str| line.trim_start().trim_start_matches("pub(crate) ").starts_with("mod ") && line.contains('{');
        let tests = (0..lines.len()).find(|&at| {
            lines[at].trim_start() == "#[cfg(test)]"
                && lines[at + 1..].iter().find(|line| !line.trim_start().starts_with("#[")).is_some_and(is_mod)
        });
        let production_lines = if is_test { 0 } else { tests.unwrap_or(lines.len()) };
        let production: String = all.split_inclusive('\n').take(production_lines).collect();
        let first = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("#!"));
        let has_docs = first.is_some_and(|line| line.starts_with("//!"));
        Self { name: name.to_owned(), module, has_docs, production_lines, production, all }
    }

    pub(crate) fn has_docs(&self) -> bool {
        self.has_docs
    }

    pub(crate) fn production_lines(&self) -> usize {
        self.production_lines
    }

    /// Identifiers of the production part.
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> {
        words(&self.production)
    }

    /// Identifiers of the whole file.
    pub(crate) fn all_words(&self) -> impl Iterator<Item = &str> {
        words(&self.all)
    }

    /// Methods that the production part calls on a field of this name, in chains: of `error.message.trim().len()` both.
    pub(crate) fn methods_on(&self, field: &str) -> Vec<&str> {
        let tokens = tokens(&self.production);
        let mut found = Vec::new();
        for at in (1..tokens.len()).filter(|&at| tokens[at] == field && tokens[at - 1] == ".") {
            let mut end = at + 1;
            while let [".", method, "(", ..] = tokens[end..] {
                found.push(method);
                end += 2 + bracketed(&tokens[end + 2..]);
                end += tokens[end..].iter().take_while(|token| **token == "?").count();
            }
        }
        found
    }

    /// Every path of the production part, groups written out.
    pub(crate) fn paths(&self) -> Vec<Vec<String>> {
        let tokens = tokens(&self.production);
        let mut paths = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let starts = is_word(tokens[at]) && (at == 0 || tokens[at - 1] != "::");
            if starts && tokens.get(at + 1) == Some(&"::") {
                at = tree(&tokens, at, &[], &mut paths);
            } else {
                at += 1;
            }
        }
        paths
    }

    /// What of the same crate is named, as a path below `crate`.
    pub(crate) fn crate_imports(&self) -> Vec<Import> {
        let resolve = |path: Vec<String>| {
            let ups = path.iter().take_while(|part| *part == "super").count();
            if path[0] == "crate" {
                return Some(Import { path: path[1..].to_vec() });
            }
            (ups > 0 && ups <= self.module.len()).then(|| {
                let base = &self.module[..self.module.len() - ups];
                Import { path: base.iter().chain(&path[ups..]).cloned().collect() }
            })
        };
        // `super::*` of a top module names nothing in particular; `crate` alone neither.
        self.paths().into_iter().filter_map(resolve).filter(|import| !import.path.is_empty()).collect()
    }
}

/// Reads the path that begins at `at`, below `prefix`; says where it ends.
fn tree(tokens: &[&str], mut at: usize, prefix: &[String], paths: &mut Vec<Vec<String>>) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens.get(at) {
            Some(&"{") => {
                at += 1;
                while at < tokens.len() && tokens[at] != "}" {
                    at = if tokens[at] == "," { at + 1 } else { tree(tokens, at, &path, paths).max(at + 1) };
                }
                return at + 1;
            }
            Some(&"*") => {
                path.push("*".to_owned());
                paths.push(path);
                return at + 1;
            }
            // A group's `self` is the group's own path.
            Some(&"self") if !prefix.is_empty() => at += 1,
            Some(word) if is_word(word) => {
                path.push((*word).to_owned());
                at += 1;
            }
            _ => {
                paths.push(path);
                return at;
            }
        }
        if tokens.get(at) == Some(&"::") {
            at += 1;
            continue;
        }
        paths.push(path);
        // A new name, in a `use`.
        return if tokens.get(at) == Some(&"as") { at + 2 } else { at };
    }
}

/// Tokens from an opening bracket to its end.
fn bracketed(tokens: &[&str]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    tokens(code).into_iter().filter(|token| is_word(token))
}

/// Identifiers, `::`, and single characters of what else there is.
fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        found.push(token);
        rest = after.trim_start();
    }
    found
}

/// The text with comments, texts and characters blanked out, line for line.
fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let before = out.chars().next_back();
        let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let (length, blank) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), true)
        } else if rest.starts_with("/*") {
            (block_comment(rest), true)
        } else if let Some(length) = (!in_word).then(|| raw_text(rest)).flatten() {
            (length, true)
        } else if first == '"' {
            (quoted(rest, '"'), true)
        } else if first == '\'' && is_char(rest) {
            (quoted(rest, '\''), true)
        } else {
            (first.len_utf8(), false)
        };
        let (piece, after) = rest.split_at(length);
        if blank {
            out.extend(piece.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            out.push_str(piece);
        }
        rest = after;
    }
    out
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    loop {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            match rest.chars().next() {
                Some(c) => at += c.len_utf8(),
                None => return at,
            }
        }
        if depth == 0 {
            return at;
        }
    }
}

fn raw_text(text: &str) -> Option<usize> {
    let start = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = start.len() - start.trim_start_matches('#').len();
    let body = start[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let until = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(text.len() - body.len() + until)
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// A character, not a lifetime.
fn is_char(text: &str) -> bool {
    let mut chars = text.chars().skip(1);
    match chars.next() {
        Some('\\') => true,
        Some(_) => chars.next() == Some('\''),
        None => false,
    }
}
