package visible

import "strings"

// Lines returns an error's text as the lines that [errors.Join] has made of it. A line feed in the text of one of the joined errors stays
// in its line, since somebody else may have written it.
func Lines(err error) []string {
	if err == nil {
		return nil
	}
	text := err.Error()
	parts := parts(err)
	if joined(parts, text) {
		var all []string
		for _, part := range parts {
			all = append(all, Lines(part)...)
		}
		return all
	}
	out := []string{""}
	add := func(lines ...string) {
		out[len(out)-1] += lines[0]
		out = append(out, lines[1:]...)
	}
	for _, part := range parts {
		inner := part.Error()
		at := strings.Index(text, inner)
		if at < 0 || inner == "" {
			continue // it is told otherwise
		}
		if between := text[:at]; between == "\n" { // of ours: a format of "%w\n%w"
			out = append(out, "")
		} else {
			add(between)
		}
		add(Lines(part)...)
		text = text[at+len(inner):]
	}
	add(text)
	return out
}

// parts are the errors that an error wraps.
func parts(err error) (all []error) {
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if part != nil {
				all = append(all, part)
			}
		}
	case interface{ Unwrap() error }:
		if part := e.Unwrap(); part != nil {
			all = append(all, part)
		}
	}
	return all
}

// joined reports whether a text is that of errors that were joined.
func joined(parts []error, text string) bool {
	texts := make([]string, len(parts))
	for i, part := range parts {
		texts[i] = part.Error()
	}
	return len(parts) > 1 && text == strings.Join(texts, "\n")
}
