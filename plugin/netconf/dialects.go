package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/internal/text/jsonkeys"
	"github.com/meshcni/meshcni/internal/text/truncate"
)

// Dialects are the names of meshes, in the order in which they are asked about a pod. In JSON one is a string, and more
// are a list of strings; in flags and variables they are separated by commas.
type Dialects []string

// String returns the form of flags, such as "ambient,istio".
func (d Dialects) String() string { return strings.Join(d, ",") }

// UnmarshalText reads the form of flags. The names are not checked; see [Dialects.Validate].
func (d *Dialects) UnmarshalText(text []byte) error {
	*d = nil
	if len(text) > 0 {
		for name := range strings.SplitSeq(string(text), ",") {
			*d = append(*d, strings.TrimSpace(name))
		}
	}
	return nil
}

// MarshalJSON writes a single name as a string, as entries had it before there could be more.
func (d Dialects) MarshalJSON() ([]byte, error) {
	if len(d) == 1 {
		return json.Marshal(d[0])
	}
	return json.Marshal([]string(d))
}

// UnmarshalJSON reads a string or a list of strings. An empty string means no names, as if the key were absent. An empty
// list, and a name that is empty or repeated, is an error; the names that remain are read all the same.
func (d *Dialects) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*d = nil
		if one != "" {
			*d = Dialects{one}
		}
		return nil
	}
	var all []string
	if err := json.Unmarshal(text, &all); err != nil || all == nil {
		return fmt.Errorf("want a string or a list of strings, not %s", jsonkeys.Abbreviate(text))
	}
	*d = nil
	if len(all) == 0 {
		return errors.New("the list is empty")
	}
	err := Dialects(all).Validate()
	for i, name := range all {
		if name != "" && !slices.Contains(all[:i], name) {
			*d = append(*d, name)
		}
	}
	return err
}

// Validate returns an error for each name that is empty or repeated, joined. Whether a name is known depends on the program.
func (d Dialects) Validate() error {
	var errs []error
	for i, name := range d {
		switch {
		case name == "":
			errs = append(errs, errors.New("a name is empty"))
		case slices.Contains(d[:i], name):
			errs = append(errs, fmt.Errorf("%s is named twice", truncate.Quote(name)))
		}
	}
	return errors.Join(errs...)
}
