//go:build !linux

package validate

import (
	"context"
	"errors"
	"fmt"
)

func accept(context.Context, func(func() error) error, uint16, uint16) (Step, error) {
	return Step{}, fmt.Errorf("accept a connection: %w", errors.ErrUnsupported)
}

// try fails: only Linux has redirection.
func try(context.Context, func(func() error) error, *planner) ([]*trial, error) {
	return nil, fmt.Errorf("try connections: %w", errors.ErrUnsupported)
}
