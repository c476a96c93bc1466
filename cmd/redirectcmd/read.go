package redirectcmd

import (
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/explain"
)

// standardInput is the name of the file "-" in errors.
const standardInput = "standard input"

// read returns the content of a file, or of standard input if name is "-".
func (p Program) read(name string) (b []byte, err error) {
	if name == "-" {
		name = standardInput
		if b, err = io.ReadAll(io.LimitReader(p.Stdin, explain.MaxManifest+1)); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	} else if b, err = p.ReadFile(name); err != nil {
		return nil, err
	}
	if len(b) > explain.MaxManifest {
		return nil, fmt.Errorf("read %s: larger than %d MiB", name, explain.MaxManifest>>20)
	}
	return b, nil
}

// object reads the one object of a file.
func object[T any](p Program, name, kind string, parse func([]byte) (*T, error)) (*T, error) {
	b, err := p.read(name)
	if err != nil {
		return nil, err
	}
	o, err := parse(b)
	if err != nil {
		if name == "-" {
			name = standardInput
		}
		return nil, fmt.Errorf("read %s from %s: %w", kind, name, err)
	}
	return o, nil
}

func (p Program) manifest(name string) (*explain.Manifest, error) {
	return object(p, name, "Pod", explain.ParseManifest)
}

func (p Program) namespace(name string) (*corev1.Namespace, error) {
	return object(p, name, "Namespace", explain.ParseNamespace)
}
