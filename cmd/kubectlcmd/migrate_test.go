package kubectlcmd

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestMigrateIsAProgram: what is typed behind migrate, and before it, is the arguments of the program beside this one.
func TestMigrateIsAProgram(t *testing.T) {
	t.Parallel()
	var ran []string
	var errs bytes.Buffer
	p := Program{
		Stderr:  &errs,
		besides: func(name string) (string, error) { return "/x/" + name, nil },
		become: func(path string, args []string) error {
			ran = append([]string{path}, args...)
			return nil
		},
	}
	assert.Equal(t, exitOK, p.Main(t.Context(), []string{"--context", "c", "migrate", "switch", "node-a", "--dry-run", "--timeout", "3s"}), errs.String())
	assert.Equal(t, []string{"/x/kubectl-meshcni-migrate", "--context", "c", "switch", "node-a", "--dry-run", "--timeout", "3s"}, ran)
	assert.Equal(t, exitOK, p.Main(t.Context(), []string{"migrate", "--help"}), errs.String())
	assert.Equal(t, []string{"/x/kubectl-meshcni-migrate", "--help"}, ran)

	p.besides = func(string) (string, error) { return "", errors.New("not found") }
	assert.Equal(t, exitWrong, p.Main(t.Context(), []string{"migrate"}))
	assert.Contains(t, errs.String(), "migrate is the program kubectl-meshcni-migrate, which is neither beside this one nor in the PATH: not found\n")
}
