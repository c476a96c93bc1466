// Package podyaml reads YAML that a pod's author may have written. It refuses aliases, which repeat what an anchor
// names, before it decodes anything: with them a hundred kilobytes can become gigabytes.
package podyaml

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// MaxSize is the default limit of a document, in bytes: half of what the API server allows for all annotations of an
// object (TotalAnnotationSizeLimitB of k8s.io/apimachinery/pkg/api/validation), or seven thousand prefixes. The library
// takes a microsecond or more per byte.
const MaxSize = 128 << 10

// ErrAlias: the document may have an alias of an anchor. Check with errors.Is(err, podyaml.ErrAlias).
var ErrAlias = errors.New("anchors and aliases are not read: write the value out")

// ErrSize: the document is too long. Check with errors.Is(err, podyaml.ErrSize).
var ErrSize = errors.New("the document is too long")

// Unmarshal is [yaml.Unmarshal] for a document of at most limit bytes without aliases; a limit of 0 is [MaxSize].
func Unmarshal(text []byte, limit int, into any) error {
	if err := check(text, limit); err != nil {
		return err
	}
	return yaml.Unmarshal(text, into)
}

// ToJSON is [yaml.YAMLToJSON] for such a document.
func ToJSON(text []byte, limit int) ([]byte, error) {
	if err := check(text, limit); err != nil {
		return nil, err
	}
	return yaml.YAMLToJSON(text)
}

func check(text []byte, limit int) error {
	if limit == 0 {
		limit = MaxSize
	}
	if len(text) > limit {
		return fmt.Errorf("%w: %d bytes, and %d are the most", ErrSize, len(text), limit)
	}
	if mayHave('&', text) && mayHave('*', text) {
		return ErrAlias
	}
	return nil
}

// mayHave reports whether a sign may begin an anchor or an alias, which needs both. It knows no quotes and no comments, so it may say
// so of what is neither. It takes for none what stands before a blank, as an "and" does, or after a letter or digit, as in the query of
// a URL: there it continues the word. A text in UTF-16, which the library reads too, is no UTF-8.
func mayHave(sign byte, text []byte) bool {
	if !utf8.Valid(text) {
		return bytes.IndexByte(text, sign) >= 0
	}
	for i, c := range text {
		if c == sign && (i == 0 || !continues(text[i-1])) && i+1 < len(text) && !blank(text[i+1]) {
			return true
		}
	}
	return false
}

func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func continues(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '_' || c == '=' || c == '/' || c == '.'
}
