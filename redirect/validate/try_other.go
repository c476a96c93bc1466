//go:build !linux

package validate

import (
	"context"
	"errors"
	"fmt"
)

// try fails: only Linux has redirection.
func try(context.Context, func(func() error) error, planner) ([]*trial, error) {
	return nil, fmt.Errorf("try connections: %w", errors.ErrUnsupported)
}
