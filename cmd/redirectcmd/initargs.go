package redirectcmd

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/meshcni/meshcni/redirect"
)

var errOtherContainer = errors.New("it is a file of another container")

// InitContainer returns the Redirect that Istio's init container writes with these arguments and variables, where base says which
// families have rules. Env is asked, as os.LookupEnv is, for each variable that counts. The error names a flag that is not known, or a
// value that cannot be.
func InitContainer(base redirect.Redirect, args []string, env func(name string) (string, bool)) (redirect.Redirect, error) {
	p := Program{
		Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard,
		Env:      env,
		ReadFile: func(string) ([]byte, error) { return nil, errOtherContainer },
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	c := common{Program: p}
	c.asIstio(fs)
	if err := fs.Parse(args); err != nil {
		return redirect.Redirect{}, fmt.Errorf("arguments of the init container: %w", err)
	}
	b, _, err := c.build(istioBase(base), nil)
	switch {
	case err != nil:
		return redirect.Redirect{}, err
	case b.skipApply || b.dryRun || b.removeOnly:
		return redirect.Redirect{}, errors.New("arguments of the init container: with them it writes no rules")
	case c.netns != "":
		return redirect.Redirect{}, errors.New("arguments of the init container: with --network-namespace it writes the rules elsewhere")
	}
	return b.Redirect, nil
}
