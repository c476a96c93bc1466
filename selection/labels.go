package selection

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/internal/text/truncate"
)

// maxSelector is the longest text that [ParseSelector] reads, in bytes. It is ten of the longest requirements that there
// can be: a label's key has at most 317 bytes, and its value at most 63.
const maxSelector = 4096

// ParseSelector reads a label selector in the form of kubectl's --selector, such as "mesh=off,team in (a,b),!legacy". The
// empty text is nil. The error is of a text that is no selector, is longer than maxSelector, or requires nothing, so
// that it would match everything.
func ParseSelector(text string) (labels.Selector, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > maxSelector {
		return nil, fmt.Errorf("label selector of %d bytes: at most %d are read", len(text), maxSelector)
	}
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("label selector %s: %w", truncate.Quote(text), err)
	}
	if requirements, _ := selector.Requirements(); len(requirements) == 0 {
		return nil, errors.New("label selector " + truncate.Quote(text) + ": requires nothing, so it would match everything")
	}
	return selector, nil
}
