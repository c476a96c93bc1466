//go:build linux

package apply_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// el10 is iptables of a host whose kernel lacks the modules of extensions that match the pattern.
func el10(pattern string) string {
	return `#!/bin/bash
case $0 in *-save) exit 0 ;; esac
while IFS= read -r line; do
  if [[ $line =~ ` + pattern + ` ]]; then
    echo "Warning: Extension ${BASH_REMATCH[0]} revision 0 not supported, missing kernel module?" >&2
    echo "iptables-restore v1.8.11 (nf_tables): line 7: RULE_APPEND failed (No such file or directory): rule in chain OUTPUT" >&2; exit 4
  fi
done
exec /usr/sbin/"${0##*/}" "$@" < /dev/null
`
}

const doesNothing = "#!/bin/sh\nexit 0\n"

// programs makes a directory with a script as each program of a variant.
func programsOf(t *testing.T, scripts map[ruleset.Backend]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for variant, script := range scripts {
		for _, p := range []string{"iptables", "ip6tables"} {
			for _, verb := range []string{"-save", "-restore"} {
				name := filepath.Join(dir, p+"-"+string(variant)[len("iptables-"):]+verb)
				require.NoError(t, os.WriteFile(name, []byte(script), 0o755)) //nolint:gosec // a program
			}
		}
	}
	return dir
}

// TestAutoGoesOn: a backend that does not take the rules, whose programs are there all the same, is passed over, and nothing of its attempt stays.
// One that was asked for by name is an error with the remedy.
func TestAutoGoesOn(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.Binary("iptables-nft"), netnstest.Binary("iptables-legacy"), netnstest.Binary("bash"))
	nft, legacy := ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy
	half := "#!/bin/sh\ncase $0 in *ip6tables-*restore) echo 'no such target' >&2; exit 2;; esac\nexec /usr/sbin/${0##*/} \"$@\"\n"
	for name, tt := range map[string]struct {
		scripts map[ruleset.Backend]string
		tproxy  bool
		says    string
	}{
		"no nft_compat":          {map[ruleset.Backend]string{nft: el10("REDIRECT")}, false, "RULE_APPEND failed"},
		"no owner":               {map[ruleset.Backend]string{nft: el10("'-m owner'")}, false, "-m owner revision 0"},
		"no CT zones":            {map[ruleset.Backend]string{nft: el10("'-j CT'")}, false, "-j CT revision"},
		"no TPROXY":              {map[ruleset.Backend]string{nft: el10("TPROXY' '")}, true, "TPROXY"},
		"no conntrack":           {map[ruleset.Backend]string{nft: el10("'-m conntrack'")}, true, "-m conntrack"},
		"does nothing":           {map[ruleset.Backend]string{nft: doesNothing, legacy: doesNothing}, false, "does not have the rules"},
		"both variants":          {map[ruleset.Backend]string{nft: el10("REDIRECT"), legacy: "#!/bin/sh\necho \"can't initialize iptables table nat\" >&2\nexit 3\n"}, false, "can't initialize"},
		"no program of that CPU": {map[ruleset.Backend]string{nft: "\x7fELF"}, false, "exec format error"},
		"one family":             {map[ruleset.Backend]string{nft: half}, false, "no such target"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := dual()
			if tt.tproxy {
				r = tproxy()
			}
			rs, err := r.Ruleset()
			require.NoError(t, err)
			o := apply.Options{Path: programsOf(t, tt.scripts)}
			ns := netnstest.New(t)
			b, err := apply.Choose(t.Context(), ns, o)
			require.NoError(t, err)
			require.NotEqual(t, ruleset.BackendNftables, b.Name(), "it is tried")
			result := mustApply(t, b, rs)
			assert.Equal(t, ruleset.BackendNftables, result.Backend)
			require.ErrorContains(t, result.Refused, tt.says)
			assert.Equal(t, ruleset.BackendNftables, b.Name())
			traces, err := apply.IptablesTraces(t.Context(), ns, rs.Owner())
			require.NoError(t, err)
			assert.Empty(t, traces)
			again, err := apply.Choose(t.Context(), ns, o)
			require.NoError(t, err)
			diffs, err := again.Check(t.Context(), rs)
			require.NoError(t, err)
			assert.Empty(t, diffs, "in force, whoever wrote them")
			assert.False(t, mustApply(t, b, rs).Changed)

			other := netnstest.New(t)
			before := state(t, other)
			o.Backend = nft
			named, err := apply.Choose(t.Context(), other, o)
			require.NoError(t, err)
			_, err = named.Apply(t.Context(), rs)
			require.ErrorContains(t, err, "backend: nftables")
			assert.Equal(t, before, state(t, other))

			o.Backend, o.Broken = ruleset.BackendAuto, map[ruleset.Backend]string{nft: "it refuses", legacy: "it too"}
			known, err := apply.Choose(t.Context(), other, o)
			require.NoError(t, err)
			assert.Equal(t, ruleset.BackendNftables, known.Name())
			assert.NoError(t, mustApply(t, known, rs).Refused)
		})
	}
}

// TestAllBroken: what is known of the backends may be old, so where it leaves none they are tried, and STATUS says what is known.
func TestAllBroken(t *testing.T) {
	t.Parallel()
	broken := map[ruleset.Backend]string{ruleset.BackendNftables: "no kernel", ruleset.BackendIptablesNFT: "no modules", ruleset.BackendIptablesLegacy: "no modules"}
	o := apply.Options{Broken: broken, Path: t.TempDir()}
	b, err := apply.Choose(t.Context(), netnstest.New(t), o)
	require.NoError(t, err)
	assert.Equal(t, ruleset.BackendNftables, b.Name())
	err = apply.Available(o)
	require.ErrorIs(t, err, apply.ErrNoBackend)
	for _, why := range broken {
		assert.ErrorContains(t, err, why)
	}
	o.Backend = ruleset.BackendNftables
	require.ErrorContains(t, apply.Available(o), "no kernel")
	delete(broken, ruleset.BackendNftables)
	require.NoError(t, apply.Available(o))
}
