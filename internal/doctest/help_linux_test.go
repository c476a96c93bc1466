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

// flagLine is a flag in help: "  -f, --file string".
var flagLine = regexp.MustCompile(`^  (?:-(\w), )?--([\w-]+) ?(.*)$`)

// flagsIn reads the flags from a program's help. Those of the plain group "Flags" have none.
func flagsIn(t *testing.T, help string) (all []flagHelp) {
	t.Helper()
	group := ""
	for line := range strings.Lines(help) {
		line = strings.TrimRight(line, "\n")
		m := flagLine.FindStringSubmatch(line)
		switch {
		case m != nil:
			all = append(all, flagHelp{group: strings.TrimPrefix(group, "Flags"), short: m[1], name: m[2], kind: m[3]})
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
	require.NotEmpty(t, all)
	return all
}

// nodeFlags are those of meshcni-node.
func nodeFlags(t *testing.T) []flagHelp {
	return flagsIn(t, help(t, "meshcni-node", "install"))
}

// bundleFlags are those of its support-bundle, which takes the others too.
func bundleFlags(t *testing.T) []flagHelp {
	return flagsIn(t, help(t, "meshcni-node", "support-bundle"))
}

// repairFlags are those of meshcni-repair.
func repairFlags(t *testing.T) []flagHelp {
	return flagsIn(t, help(t, "meshcni-repair"))
}

// taintFlags are those of one command of meshcni-taint.
func taintFlags(t *testing.T, command string) []flagHelp {
	return flagsIn(t, help(t, "meshcni-taint", command))
}

var redirectCommands = []string{"explain", "check-manifests", "rules", "trace", "compare", "show", "apply", "check", "cleanup", "validate"}

// redirectFlags are those of one command of meshcni-redirect.
func redirectFlags(t *testing.T, command string) []flagHelp {
	return flagsIn(t, help(t, "meshcni-redirect", command))
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
