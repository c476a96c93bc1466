package doctest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the reference's tables anew")

const reference = "docs/configuration.md"

// tables are the reference's generated parts by their mark, <!-- generated: NAME -->.
func tables(t *testing.T) map[string]string {
	all := map[string]string{}
	node := nodeFlags(t)
	var titles []string
	for _, f := range node {
		if f.group != "" && !slices.Contains(titles, f.group) {
			titles = append(titles, f.group)
		}
	}
	var b strings.Builder
	for _, group := range titles {
		fmt.Fprintf(&b, "**%s**\n\n", group)
		b.WriteString(table(slices.DeleteFunc(slices.Clone(node), func(f flagHelp) bool { return f.group != group })))
		b.WriteByte('\n')
	}
	all["meshcni-node"] = b.String()
	all["meshcni-node support-bundle"] = table(without(bundleFlags(t), node))
	all["meshcni-repair"] = beside(repairFlags(t), node)
	all["meshcni-taint"] = beside(taintFlags(t, "run"), node)
	all["plugin keys"] = pluginKeys(t, node)

	rules, trace := redirectFlags(t, "rules"), redirectFlags(t, "trace")
	every := common(rules, trace)
	for _, command := range redirectCommands {
		if command != "check-manifests" { // it is about many pods, so some flags mean another thing there
			every = common(every, redirectFlags(t, command))
		}
	}
	apply := without(redirectFlags(t, "apply"), every)
	netns := without(apply, rules)
	program := without(apply, netns)
	all["meshcni-redirect"] = beside(every, node)
	// Each flag stands once, with all commands that have it.
	var order []string
	groups := map[string][]flagHelp{}
	var flags []flagHelp
	having := map[string][]string{}
	for _, command := range redirectCommands {
		for _, f := range without(without(redirectFlags(t, command), every), program) {
			if key := f.name + f.usage; having[key] == nil {
				flags = append(flags, f)
				having[key] = []string{command}
			} else {
				having[key] = append(having[key], command)
			}
		}
	}
	for _, f := range flags {
		commands := strings.Join(having[f.name+f.usage], ", ")
		if groups[commands] == nil {
			order = append(order, commands)
		}
		groups[commands] = append(groups[commands], f)
	}
	b.Reset()
	for _, commands := range order {
		fmt.Fprintf(&b, "**%s**\n\n%s\n", commands, table(groups[commands]))
	}
	all["meshcni-redirect commands"] = b.String()
	return all
}

// beside is a table of the flags that the agent does not have too, with the same default, and a line with the names of those.
func beside(flags, agents []flagHelp) string {
	same := func(f, g flagHelp) bool { return f.name == g.name && f.byDefault == g.byDefault && f.name != "config" } // that is another file
	var own []flagHelp
	var shared []string
	for _, f := range flags {
		if slices.ContainsFunc(agents, func(g flagHelp) bool { return same(f, g) }) {
			shared = append(shared, "`--"+f.name+"`")
		} else {
			own = append(own, f)
		}
	}
	return "As [the agent's](#the-node-agent): " + strings.Join(shared, " ") + "\n\n" + table(own)
}

// variable is the name of a flag in the environment, which every flag of the agent has. Some have an older one too.
func variable(flag string) string {
	return "MESHCNI_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// table is a list of flags: "- `--name kind` (`default`): what it is for".
func table(flags []flagHelp) string {
	var b strings.Builder
	for _, f := range flags {
		name := "`--" + strings.TrimSpace(f.name+" "+f.kind) + "`"
		if f.short != "" {
			name = "`-" + f.short + "`, " + name
		}
		if f.byDefault != "" {
			name += " (`" + f.byDefault + "`)"
		}
		usage := f.usage
		var also []string
		for _, e := range f.env {
			if e != variable(f.name) && (slices.Contains(f.env, variable(f.name)) || "MESHCNI_"+e != variable(f.name)) { // the others' is in the prose
				also = append(also, "`"+e+"`")
			}
		}
		if len(also) > 0 {
			usage += " (also " + strings.Join(also, ", ") + ")"
		}
		fmt.Fprintf(&b, "- %s: %s\n", name, usage)
	}
	return b.String()
}

// TestVariables: a flag of the agent has the variable that the reference says every flag has.
func TestVariables(t *testing.T) {
	for _, f := range nodeFlags(t) {
		assert.Contains(t, f.env, variable(f.name), "--%s", f.name)
	}
}

// TestReference: the reference says what the programs' --help says. Write it anew with
//
//	go test ./internal/doctest -run Reference -update
func TestReference(t *testing.T) {
	generated(t, reference, tables(t))
}

// generated compares the parts of a page between <!-- generated: NAME --> and <!-- end --> with what they are to be, or writes them.
func generated(t *testing.T, page string, want map[string]string) {
	t.Helper()
	text := read(t, page)
	part := regexp.MustCompile(`(?s)(<!-- generated: ([\w -]+) -->\n)(.*?)(<!-- end -->)`)
	found := map[string]bool{}
	made := part.ReplaceAllStringFunc(text, func(s string) string {
		m := part.FindStringSubmatch(s)
		found[m[2]] = true
		require.Contains(t, want, m[2], "%s: nothing is generated under the mark", page)
		return m[1] + "\n" + strings.TrimSpace(want[m[2]]) + "\n\n" + m[4]
	})
	for name := range want {
		assert.True(t, found[name], "%s: no mark %q", page, name)
	}
	if *update {
		require.NoError(t, os.WriteFile(filepath.Join(root(t), page), []byte(made), 0o644)) //nolint:gosec // a source file
		return
	}
	for i, line := range strings.Split(made, "\n") {
		if lines := strings.Split(text, "\n"); i >= len(lines) || line != lines[i] {
			require.Fail(t, "a part is not what the code says; write it anew: go test ./internal/doctest -run 'Reference|StatusCodes' -update",
				"%s:%d should be: %s", page, i+1, line)
		}
	}
	require.Len(t, text, len(made))
}

// flagsOfOthers are flags of programs that are not ours, which prose speaks of.
var flagsOfOthers = map[string]string{
	"--noflush": "iptables-restore", "--set": "helm", "--set-file": "helm", "--dry-run": "kubectl too", "--previous": "kubectl",
	"--wait": "helm", "--cleanup-on-fail": "helm", "--no-hooks": "helm", "--private-infrastructure": "cosign", "--registry": "release",
	"--all-namespaces": "kubectl", "--selector": "kubectl", "--output": "kubectl", "--help": "every program", "--version": "every program", "--ipv6": "linkerd-init", "--config-file": "kuma-init",
}

// calls are what our programs are called with, in a block of commands.
var calls = regexp.MustCompile(`(helm \w+ )?\bmeshcni(?:-node|-redirect|-repair|-taint)? ([^|;&>]*)`)

// TestFlagsExist: a flag that documentation names is in some program's --help.
func TestFlagsExist(t *testing.T) {
	known := map[string]bool{}
	all := append(bundleFlags(t), repairFlags(t)...)
	all = append(all, nodeFlags(t)...)
	all = append(all, taintFlags(t, "run")...)
	for _, command := range append(redirectCommands, "istio-iptables") {
		all = append(all, redirectFlags(t, command)...)
	}
	for _, command := range []string{"uninstall", "await-uninstall", "release"} {
		all = append(all, flagsIn(t, help(t, "meshcni-node", command))...)
	}
	all = append(all, flagsIn(t, help(t, "kubectl-meshcni"))...)
	for _, command := range []string{"status", "explain", "rules", "trace", "show", "check", "test"} {
		all = append(all, flagsIn(t, help(t, "kubectl-meshcni", command))...)
	}
	all = append(all, flagsIn(t, help(t, "kubectl-meshcni-migrate"))...)
	for _, command := range []string{"switch", "back"} {
		all = append(all, flagsIn(t, help(t, "kubectl-meshcni-migrate", command))...)
	}
	for _, f := range all {
		known["--"+f.name] = true
	}
	flags := regexp.MustCompile("(?:^|[\\s`(\"'\\[])(--[a-z][a-z0-9_-]*)")
	for _, file := range files(t, ".md", documented...) {
		for i, line := range prose(t, file) {
			for _, m := range flags.FindAllStringSubmatch(line, -1) {
				assert.True(t, known[m[1]] || flagsOfOthers[m[1]] != "", "%s:%d: no program has %s", file, i+1, m[1])
			}
		}
		for _, b := range blocksOf(t, file) {
			if b.Lang != "sh" {
				continue
			}
			for _, call := range calls.FindAllStringSubmatch(strings.ReplaceAll(b.Text, "\\\n", " "), -1) {
				if call[1] != "" { // helm install meshcni …
					continue
				}
				for _, m := range flags.FindAllStringSubmatch(call[2], -1) {
					assert.True(t, known[m[1]] || flagsOfOthers[m[1]] != "", "%s: no program has %s", b, m[1])
				}
			}
		}
	}
}

// TestVariablesExist: a variable that documentation names is read by some program.
func TestVariablesExist(t *testing.T) {
	name := regexp.MustCompile(`\bMESHCNI_[A-Z0-9_]*[A-Z0-9]\b`)
	known := map[string]bool{}
	for _, f := range append(nodeFlags(t), repairFlags(t)...) {
		for _, env := range f.env {
			known[env] = true
		}
	}
	for path, text := range sources(t) {
		if !strings.HasPrefix(path, "internal/doctest/") {
			for _, env := range name.FindAllString(text, -1) {
				known[env] = true
			}
		}
	}
	for _, file := range files(t, ".md", documented...) {
		for i, line := range strings.Split(read(t, file), "\n") {
			for _, env := range name.FindAllString(line, -1) {
				assert.True(t, known[env], "%s:%d: nothing reads %s", file, i+1, env)
			}
		}
	}
}
