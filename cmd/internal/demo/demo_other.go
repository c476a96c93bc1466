//go:build !linux

package main

import (
	"context"
	"errors"
	"io"
)

const addrPlugin = "demo-addr"

func giveAddress() int { return 1 }

func show(context.Context, io.Writer) error { return errors.ErrUnsupported }
