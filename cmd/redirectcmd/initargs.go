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

// InitContainer returns the Redirect that Istio's init container writes with these arguments and variables, on top of base. Env is
// asked, as os.LookupEnv is, for each variable that counts. Logging's flags are left out. The error names a flag that is not known, or a
// value that cannot be.
func InitContainer(base redirect.Redirect, args []string, env func(name string) (string, bool)) (redirect.Redirect, error) {
	p := Program{
		Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard,
		Env:      env,
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
