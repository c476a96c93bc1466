//go:build !linux

package backends

import (
	"context"

	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Read finds nothing here.
func Read(string, ruleset.Backend) (broken map[ruleset.Backend]string, ok bool) { return nil, false }

// Usable returns the error of [apply.Available].
func Usable(_ context.Context, name ruleset.Backend) error {
	return apply.Available(apply.Options{Backend: name})
}
