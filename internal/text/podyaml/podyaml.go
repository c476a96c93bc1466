// Package podyaml reads YAML that a pod's author may have written. It refuses aliases, which repeat what an anchor
// names, before it decodes anything: with them a hundred kilobytes can become gigabytes.
package podyaml

import (
	"errors"
	"fmt"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// MaxSize is the default limit of a document, in bytes: half of what the API server allows for all annotations of an
// object (TotalAnnotationSizeLimitB of k8s.io/apimachinery/pkg/api/validation), or seven thousand prefixes. The library
// takes a microsecond or more per byte.
const MaxSize = 128 << 10

// ErrAlias: the document has an anchor or an alias. Check with errors.Is(err, podyaml.ErrAlias).
var ErrAlias = errors.New("anchors and aliases are not read: write the value out")

// ErrSize: the document is too long. Check with errors.Is(err, podyaml.ErrSize).
var ErrSize = errors.New("the document is too long")

// Unmarshal is [yaml.Unmarshal] for a document of at most limit bytes without
// anchors and aliases; a limit of 0 is [MaxSize].
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
	return plain(text)
}

// plain refuses anchors and aliases, which a tree of nodes does not expand; the library bounds its depth. Nearly every
// document has no '&', so no anchor, and an alias without anchor is an error anyway.
func plain(text []byte) error {
	if !strings.Contains(string(text), "&") {
		return nil
	}
	var document yamlv3.Node
	if err := yamlv3.Unmarshal(text, &document); err != nil {
		return err
	}
	for nodes := []*yamlv3.Node{&document}; len(nodes) > 0; {
		n := nodes[len(nodes)-1]
		nodes = append(nodes[:len(nodes)-1], n.Content...)
		if n.Kind == yamlv3.AliasNode || n.Anchor != "" {
			return fmt.Errorf("line %d: %w", n.Line, ErrAlias)
		}
	}
	return nil
}
