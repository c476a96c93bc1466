package main

import (
	"errors"
	"fmt"
	"os"
)

// tb is what package netnstest wants of a test. Fatalf and Skipf end the demo,
// by a panic that show recovers from.
type tb struct {
	cleanups []func()
	err      error
}

type ended struct{ error }

func newTB() *tb { return &tb{} }

func (t *tb) Helper()          {}
func (t *tb) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *tb) Fatalf(format string, args ...any) { panic(ended{fmt.Errorf(format, args...)}) }
func (t *tb) Skipf(format string, args ...any)  { t.Fatalf(format, args...) }

func (t *tb) TempDir() string {
	dir, err := os.MkdirTemp("", "meshcni-demo-")
	if err != nil {
		t.Fatalf("make a directory: %w", err)
	}
	t.Cleanup(func() { t.err = errors.Join(t.err, os.RemoveAll(dir)) })
	return dir
}

// end takes down what was made, last first, and returns what went wrong: what
// a panic said, and in taking down.
func (t *tb) end(panicked any) error {
	var err error
	if panicked != nil {
		e, ok := panicked.(ended)
		if !ok {
			defer panic(panicked)
		}
		err = e.error
	}
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		func() {
			defer func() {
				if p, ok := recover().(ended); ok {
					err = errors.Join(err, p.error)
				}
			}()
			t.cleanups[i]()
		}()
	}
	return errors.Join(err, t.err)
}
