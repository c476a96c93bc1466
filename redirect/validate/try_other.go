//go:build !linux

package validate

import (
	"context"
	"errors"
	"fmt"
)

// try fails: redirection is Linux's.
func try(context.Context, func(func() error) error, planning) error {
	return fmt.Errorf("try connections: %w", errors.ErrUnsupported)
}
