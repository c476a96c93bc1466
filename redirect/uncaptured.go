package redirect

import (
	"fmt"

	"github.com/meshcni/meshcni/internal/text/truncate"
)

// UncapturedFamily is the treatment of an address family that a mesh does not
// capture. The zero value means [UncapturedAllow].
type UncapturedFamily string

const (
	// UncapturedAllow lets the family's traffic bypass the mesh.
	UncapturedAllow UncapturedFamily = "allow"
	// UncapturedDrop discards the family's TCP traffic.
	UncapturedDrop UncapturedFamily = "drop"
)

// UnmarshalText accepts what [ParseUncapturedFamily] does.
func (u *UncapturedFamily) UnmarshalText(text []byte) (err error) {
	*u, err = ParseUncapturedFamily(string(text))
	return err
}

// ParseUncapturedFamily parses "allow" or "drop"; an empty string is [UncapturedAllow].
func ParseUncapturedFamily(s string) (UncapturedFamily, error) {
	switch f := UncapturedFamily(s); f {
	case "":
		return UncapturedAllow, nil
	case UncapturedAllow, UncapturedDrop:
		return f, nil
	}
	return "", fmt.Errorf("%s is not one of allow, drop", truncate.Quote(s))
}
