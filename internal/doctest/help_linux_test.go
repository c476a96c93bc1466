package doctest

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// help is what a program prints when asked for help.
func help(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs(t), program), append(args, "--help")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// flagHelp is what a program's --help says of one flag.
type flagHelp struct {
	group, name, short, kind, usage, byDefault string
	env                                        []string
}

// nodeFlags are those of meshcni-node.
func nodeFlags(t *testing.T) []flagHelp {
	var all []flagHelp
	group := ""
	for line := range strings.Lines(help(t, "meshcni-node", "install")) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "  --"):
			name, kind, _ := strings.Cut(strings.TrimPrefix(line, "  --"), " ")
			all = append(all, flagHelp{group: group, name: name, kind: kind})
		case strings.HasPrefix(line, "        ") && len(all) > 0:
			f, said := &all[len(all)-1], strings.TrimSpace(line)
			if f.usage == "" {
				f.usage, f.byDefault = cutDefault(said)
			} else {
				f.env = strings.Split(said, " or ")
			}
		case strings.HasSuffix(line, ":"):
			group = strings.TrimSuffix(line, ":")
		}
	}
	return all
}

// repairFlags are those of meshcni-repair.
func repairFlags(t *testing.T) []flagHelp {
	var all []flagHelp
	for line := range strings.Lines(help(t, "meshcni-repair")) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "  -"):
			name, kind, _ := strings.Cut(strings.TrimPrefix(line, "  -"), " ")
			env := "MESHCNI_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
			all = append(all, flagHelp{name: name, kind: kind, env: []string{env}})
		case strings.HasPrefix(line, "    \t") && len(all) > 0:
			f := &all[len(all)-1]
			f.usage, f.byDefault = cutDefault(strings.TrimSpace(line))
		}
	}
	return all
}

var redirectCommands = []string{"explain", "rules", "trace", "compare", "apply", "check", "cleanup", "validate"}

var pflagLine = regexp.MustCompile(`^ +(?:-(\w), )?--([\w-]+)(?: (\w+))? +(.*)$`)

// redirectFlags are those of one command of meshcni-redirect.
func redirectFlags(t *testing.T, command string) []flagHelp {
	var all []flagHelp
	for line := range strings.Lines(help(t, "meshcni-redirect", command)) {
		if m := pflagLine.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil && m[2] != "help" {
			f := flagHelp{short: m[1], name: m[2], kind: m[3]}
			f.usage, f.byDefault = cutDefault(m[4])
			all = append(all, f)
		}
	}
	require.NotEmpty(t, all, command)
	return all
}

var usageDefault = regexp.MustCompile(`^(.*) \(default "?([^()"]+?)"?\)$`)

// cutDefault takes the default off a usage. "(default: …)" is the author's, and stays.
func cutDefault(usage string) (rest, byDefault string) {
	if m := usageDefault.FindStringSubmatch(usage); m != nil {
		return m[1], m[2]
	}
	return usage, ""
}

func (f flagHelp) equal(g flagHelp) bool { return f.name == g.name && f.usage == g.usage }

func without(flags, others []flagHelp) []flagHelp {
	return slices.DeleteFunc(slices.Clone(flags), func(f flagHelp) bool { return slices.ContainsFunc(others, f.equal) })
}

func common(flags, others []flagHelp) []flagHelp { return without(flags, without(flags, others)) }
