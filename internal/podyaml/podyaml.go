// Package podyaml reads YAML that a pod's author may have written. YAML lets a
// few bytes stand for many: an alias repeats what an anchor names, so a hundred
// kilobytes can become gigabytes. Here they are refused, before anything is
// made of them.
package podyaml

import (
	"errors"
	"fmt"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// MaxSize is the size of the largest document that [Unmarshal] reads, in bytes,
// unless told otherwise: half of what the API server allows for all annotations
// of an object (k8s.io/apimachinery/pkg/api/validation.TotalAnnotationSizeLimitB),
// seven thousand prefixes. The library takes a microsecond or more for a byte.
const MaxSize = 128 << 10

// ErrAlias says that a document has an anchor or an alias. Check with
// errors.Is(err, podyaml.ErrAlias).
var ErrAlias = errors.New("anchors and aliases are not read: write the value out")

// ErrSize says that a document is too long. Check with errors.Is(err, podyaml.ErrSize).
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

// plain refuses anchors and aliases. A tree of nodes keeps them apart from what
// they stand for; the library bounds its depth. What has no '&' has no anchor, and
// then an alias names nothing, which is an error anyway: that is nearly every document.
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
