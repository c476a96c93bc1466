//go:build !linux

package netnstest

import (
	"fmt"
	"runtime"
)

func rootCheck() error { return fmt.Errorf("this is %s", runtime.GOOS) }
