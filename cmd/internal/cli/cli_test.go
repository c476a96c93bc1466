package cli_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/internal/cli"
)

// settings are what the flags of the tests set.
type settings struct {
	name, mode string
	zones      []string
	deadline   time.Duration
	quiet      bool
}

func (s *settings) register(fs *pflag.FlagSet) {
	s.zones = []string{"a"}
	cli.Group(fs, "What is done", func(fs *pflag.FlagSet) {
		fs.VarP(cli.Text(&s.name, "word"), "name", "n", "what it is called")
		fs.Var(cli.List(&s.zones, "a,b"), "zone", "where")
		fs.Var(cli.Choice(&s.mode, "text", "json"), "mode", "text or json")
	})
	fs.DurationVar(&s.deadline, "deadline", time.Second, "how long")
	fs.BoolVar(&s.quiet, "quiet", false, "say nothing")
	cli.BindEnv(fs, "MESHCNI_", map[string][]string{"name": {"NAME"}})
}

func variables(pairs map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := pairs[name]; return v, ok }
}

func TestPrecedence(t *testing.T) {
	var s settings
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.register(fs)
	require.NoError(t, fs.Parse([]string{"--zone=b,c", "--zone", "c, d"}))
	file := func(f *pflag.Flag) (string, string, bool) { return "file", "the file", f.Name == "name" }
	env := map[string]string{"MESHCNI_ZONE": "e", "NAME": "short", "MESHCNI_DEADLINE": "", "MESHCNI_MODE": "json"}
	require.NoError(t, cli.Fill(fs, cli.Env(variables(env)), file))
	assert.Equal(t, settings{"short", "json", []string{"b", "c", "d"}, time.Second, false}, s, "a flag, the first variable that is not empty, the default")

	env = map[string]string{"MESHCNI_NAME": "long", "NAME": "short", "MESHCNI_DEADLINE": "soon", "MESHCNI_QUIET": "perhaps", "MESHCNI_MODE": "xml", "MESHCNI_ZONE": ""}
	s, fs = settings{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	s.register(fs)
	err := cli.Fill(fs, cli.Env(variables(env)), file)
	for _, part := range []string{`MESHCNI_DEADLINE="soon": `, `MESHCNI_QUIET="perhaps": `, `MESHCNI_MODE="xml": not one of text, json`} {
		assert.ErrorContains(t, err, part)
	}
	assert.Equal(t, "long", s.name)
	assert.Equal(t, []string{"a"}, s.zones)

	s, fs = settings{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	s.register(fs)
	require.NoError(t, cli.Fill(fs, cli.Env(nil), file))
	assert.Equal(t, "file", s.name)
}

func TestProgram(t *testing.T) {
	failures := map[string]error{
		"usage": cli.Usage(errors.Join(errors.New("two"), errors.New("lines"))), "failure": errors.New("broken"), "silent": cli.Exit(126), "none": cli.Usage(nil),
	}
	for _, c := range []struct {
		args   []string
		code   int
		out    []string
		errOut string
	}{
		{[]string{"--version"}, 0, []string{"prog v1\n"}, ""},
		{[]string{"-v"}, 0, []string{"prog v1\n"}, ""},
		{[]string{"version"}, 0, []string{"prog v1\n"}, ""},
		{nil, 2, nil, "prog: name a command: failure, none, silent, usage\nprog: see --help\n"},
		{[]string{"fly"}, 2, nil, "prog: unknown command \"fly\": not one of failure, none, silent, usage\nprog: see --help\n"},
		{[]string{"usage"}, 2, nil, "prog: two\nprog: lines\nprog: see --help\n"},
		{[]string{"failure"}, 1, nil, "prog: broken\n"},
		{[]string{"silent"}, 126, nil, ""},
		{[]string{"none"}, 0, nil, ""},
		{[]string{"none", "more"}, 2, nil, "prog: unexpected argument \"more\": everything is said by flags\nprog: see --help\n"},
		{[]string{"none", "--quiet", "true", "--name", "--quiet", "--zone", "false"}, 0, nil, ""},
		{[]string{"none", "--quiet=false"}, 0, nil, ""},
		{[]string{"none", "--quiet", "perhaps"}, 2, nil, "prog: unexpected argument \"perhaps\": everything is said by flags\nprog: see --help\n"},
		{[]string{"none", "--", "--quiet", "true"}, 2, nil, "prog: unexpected argument \"--quiet\": everything is said by flags\nprog: see --help\n"},
		{[]string{"none", "--frob"}, 2, nil, "prog: unknown flag: --frob\nprog: see --help\n"},
		{[]string{"--help"}, 0, []string{"prog: test\n", "  failure      fails\n"}, ""},
		{[]string{"none", "--help"}, 0, []string{
			"prog none: fails\n\nUsage:\n  prog none [flags]\n",
			"\nFlags:\n  --deadline duration\n        how long (default 1s)\n        MESHCNI_DEADLINE\n  --quiet\n        say nothing\n        MESHCNI_QUIET\n",
			"\nWhat is done:\n  --mode string\n        text or json (default text)\n",
			"  -n, --name word\n        what it is called\n        MESHCNI_NAME or NAME\n  --zone a,b\n        where (default a)\n",
		}, ""},
	} {
		root := &cobra.Command{Short: "test"}
		for name, err := range failures {
			sub := &cobra.Command{Use: name, Short: "fails", RunE: func(*cobra.Command, []string) error { return err }}
			new(settings).register(sub.Flags())
			root.AddCommand(sub)
		}
		var out, errOut bytes.Buffer
		code := cli.Program{Name: "prog", Version: "v1", Stdout: &out, Stderr: &errOut, Root: root}.Run(t.Context(), c.args)
		assert.Equal(t, c.code, code, c.args)
		assert.Equal(t, c.errOut, errOut.String(), c.args)
		for _, part := range c.out {
			assert.Contains(t, out.String(), part, c.args)
		}
		if c.out == nil {
			assert.Empty(t, out.String(), c.args)
		}
	}
}

// TestJoined: a value of its own is one where the command takes no arguments, and the flags are not another program's.
func TestJoined(t *testing.T) {
	c := &cobra.Command{Args: cobra.NoArgs}
	c.Flags().Bool("quiet", false, "")
	c.Flags().StringP("name", "n", "", "")
	assert.Equal(t, []string{}, cli.Joined(c, nil))
	assert.Equal(t, []string{"--quiet=false", "-n", "x", "--name", "--quiet", "true"}, cli.Joined(c, []string{"--quiet", "false", "-n", "x", "--name", "--quiet", "true"}))
	c.Args = cobra.ArbitraryArgs
	pod := []string{"--quiet", "true"}
	assert.Equal(t, pod, cli.Joined(c, pod), "a pod may be called so")
	c.Args = cobra.NoArgs
	cli.Alone(c.Flags())
	assert.Equal(t, pod, cli.Joined(c, pod))
}

// A program without commands runs its own.
func TestProgramOfOneCommand(t *testing.T) {
	for code, args := range map[int][]string{0: {"--version"}, 1: nil, 2: {"run"}} {
		var out bytes.Buffer
		p := cli.Program{Name: "prog", Stdout: &out, Stderr: &out, Root: &cobra.Command{RunE: func(*cobra.Command, []string) error { return errors.New("broken") }}}
		assert.Equal(t, code, p.Run(t.Context(), args))
	}
}
