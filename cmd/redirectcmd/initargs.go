package redirectcmd

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/meshcni/meshcni/redirect"
)

var errOtherPod = errors.New("its resolv.conf is that of another pod")

// InitContainer returns the Redirect that Istio's init container writes with these arguments and variables, on top of base. Logging's
// flags are left out. The error names a flag that is not known, or a value that cannot be.
func InitContainer(base redirect.Redirect, args []string, env map[string]string) (redirect.Redirect, error) {
	p := Program{
		Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard,
		Env:      func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		ReadFile: func(string) ([]byte, error) { return nil, errOtherPod },
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c := common{Program: p, ruleFlags: addRuleFlags(fs)}
	var words []string
	for _, a := range args {
		if !strings.HasPrefix(a, "--log_") {
			words = append(words, a)
		}
	}
	if err := fs.Parse(words); err != nil {
		return redirect.Redirect{}, fmt.Errorf("arguments of the init container: %w", err)
	}
	b, _, err := c.build(base, nil)
	return b.Redirect, err
}
