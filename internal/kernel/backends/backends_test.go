//go:build linux

package backends_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/kernel/backends"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

const nft, legacy, native = ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy, ruleset.BackendNftables

// lacking is a program of iptables whose kernel lacks what matches; what it takes, it hands to the real one.
func lacking(pattern string) string {
	return `#!/bin/bash
in=$(cat)
if [[ $0 != *-save && $in =~ ` + pattern + ` ]]; then
  echo "iptables-restore v1.8.11 (nf_tables): line 7: RULE_APPEND failed (No such file or directory): ${BASH_REMATCH[0]}" >&2; exit 4
fi
exec /usr/sbin/"${0##*/}" "$@" <<< "$in"
`
}

// host makes a directory of programs: those of this machine, but for the scripts, and none of a variant whose script is empty.
func host(t *testing.T, scripts map[ruleset.Backend]string) (path string) {
	t.Helper()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("iptables-nft"), netnstest.Binary("iptables-legacy"), netnstest.Binary("bash"))
	path = t.TempDir()
	for _, variant := range []ruleset.Backend{nft, legacy} {
		script, changed := scripts[variant]
		for _, program := range []string{"iptables", "ip6tables"} {
			for _, verb := range []string{"-save", "-restore"} {
				name := program + strings.TrimPrefix(string(variant), "iptables") + verb
				switch {
				case !changed:
					require.NoError(t, os.Symlink("/usr/sbin/"+name, filepath.Join(path, name)))
				case script != "":
					require.NoError(t, os.WriteFile(filepath.Join(path, name), []byte(script), 0o755)) //nolint:gosec // a program
				}
			}
		}
	}
	return path
}

// trials are those of a mesh with sidecars.
func trials() []backends.Trial {
	changed := func(change func(*redirect.Redirect)) []redirect.Redirect {
		r := redirect.Default()
		r.IPv6 = redirect.FamilyPass
		change(&r)
		return []redirect.Redirect{r}
	}
	return []backends.Trial{
		{Name: "redirect", Needed: true, Redirects: []redirect.Redirect{backends.Sidecars(ruleset.IPv4)}},
		{Name: "redirect-ipv6", Redirects: []redirect.Redirect{backends.Sidecars(ruleset.IPv6)}},
		{Name: "tproxy", Redirects: changed(func(r *redirect.Redirect) { r.Mode, r.DropInvalid = redirect.ModeTProxy, true })},
		{Name: "dns-zones", Redirects: changed(func(r *redirect.Redirect) { r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053} })},
	}
}

// TestTry: what a backend can do is what it does, whatever files are there.
func TestTry(t *testing.T) {
	const refuses = "#!/bin/sh\necho 'No chain/target/match by that name.' >&2\nexit 1\n"
	for name, tt := range map[string]struct {
		scripts  map[ruleset.Backend]string
		first    ruleset.Backend            // for auto
		broken   map[ruleset.Backend]string // for auto
		iptables string                     // what is said of backend iptables; empty: it works
	}{
		"all there":            {nil, nft, nil, ""},
		"no owner":             {map[ruleset.Backend]string{nft: lacking("'-m owner'"), legacy: ""}, native, map[ruleset.Backend]string{nft: "redirect: "}, "set backend: nftables, which works here"},
		"no multiport":         {map[ruleset.Backend]string{nft: lacking("'-m multiport'"), legacy: ""}, native, map[ruleset.Backend]string{nft: "redirect: "}, "-m multiport"},
		"no REDIRECT":          {map[ruleset.Backend]string{nft: lacking("REDIRECT"), legacy: refuses}, native, map[ruleset.Backend]string{nft: "redirect: ", legacy: "No chain/target/match"}, "set backend: nftables"},
		"no REDIRECT in one":   {map[ruleset.Backend]string{nft: lacking("REDIRECT")}, legacy, map[ruleset.Backend]string{nft: "redirect: "}, ""},
		"no CT, which is rare": {map[ruleset.Backend]string{nft: lacking("'-j CT'"), legacy: ""}, native, map[ruleset.Backend]string{nft: "dns-zones: "}, ""},
		"no TPROXY":            {map[ruleset.Backend]string{nft: lacking("'-j TPROXY'"), legacy: ""}, native, map[ruleset.Backend]string{nft: "tproxy: "}, ""},
		"no conntrack":         {map[ruleset.Backend]string{nft: lacking("'-m conntrack'"), legacy: ""}, native, map[ruleset.Backend]string{nft: "tproxy: "}, ""},
		"it does nothing":      {map[ruleset.Backend]string{nft: "#!/bin/sh\nexit 0\n", legacy: ""}, native, map[ruleset.Backend]string{nft: "does not have the rules"}, "set backend: nftables"},
		"no programs":          {map[ruleset.Backend]string{nft: "", legacy: ""}, native, nil, "no ip"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := apply.Options{Path: host(t, tt.scripts)}
			found := backends.Try(t.Context(), o, nil, trials())
			assert.True(t, found.Known(ruleset.BackendAuto))
			require.NotNil(t, found.First(ruleset.BackendAuto))
			assert.Equal(t, tt.first, found.First(ruleset.BackendAuto).Backend)
			broken := found.Broken(ruleset.BackendAuto)
			assert.Len(t, broken, len(tt.broken), "%v", broken)
			for b, says := range tt.broken {
				assert.Contains(t, broken[b], says)
			}
			require.NoError(t, found.Err(ruleset.BackendAuto))
			require.NoError(t, found.Err(native))
			err := found.Err(ruleset.BackendIptables)
			if tt.iptables == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.iptables)
				require.ErrorIs(t, err, apply.ErrNoBackend)
			}
		})
	}
}

// TestNothingWorks: with no backend that does all, those that are of use are taken; with none of these, that is said.
func TestNothingWorks(t *testing.T) {
	t.Parallel()
	refused := errors.New("table inet MESH: no nf_tables")
	useless := func(b ruleset.Backend) backends.Finding {
		return backends.Finding{Backend: b, Refused: map[string]error{"redirect": refused}, Why: "redirect: no nf_tables", Useless: true}
	}
	partly := backends.Finding{Backend: nft, Refused: map[string]error{"tproxy": refused}, Why: "tproxy"}
	found := backends.Found{partly, useless(legacy), useless(native)}
	assert.Equal(t, nft, found.First(ruleset.BackendAuto).Backend)
	require.NoError(t, found.Err(ruleset.BackendAuto))
	assert.Len(t, found.Broken(ruleset.BackendAuto), 2)
	found[0] = useless(nft)
	require.ErrorContains(t, found.Err(ruleset.BackendAuto), "no backend works here: load the modules that are named")
	require.ErrorContains(t, found.Err(""), "with backend: auto")
	found[0] = backends.Finding{Backend: nft, Unknown: errors.New("not seen")}
	require.NoError(t, found.Err(ruleset.BackendAuto), "it may work")
	assert.False(t, found.Known(ruleset.BackendAuto))
	assert.True(t, found.Known(native))
	assert.Nil(t, backends.Found(nil).First(ruleset.BackendAuto))
	require.NoError(t, backends.Found(nil).Err(ruleset.BackendAuto))
}

// TestBlind: an agent that does not see the host's programs knows nothing of them.
func TestBlind(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	found := backends.Try(t.Context(), apply.Options{Path: t.TempDir()}, errors.New("not seen"), trials())
	require.ErrorContains(t, found.First(ruleset.BackendAuto).Unknown, "not seen")
	assert.Empty(t, found.Broken(ruleset.BackendAuto))
	assert.False(t, found.Known(ruleset.BackendAuto))
	assert.True(t, found.Known(native))
	require.NoError(t, found.Err(ruleset.BackendIptables))
}

// TestAnswer: the plugin reads what the agent has found with the same backend and the same kernel, and nothing else.
func TestAnswer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, ok := backends.Read(dir, ruleset.BackendAuto)
	assert.False(t, ok)
	found := backends.Found{{Backend: nft, Refused: map[string]error{"tproxy": errors.New("no module")}, Why: "tproxy: no module"}, {Backend: native}}
	require.NoError(t, found.Write(dir, ruleset.BackendAuto))
	broken, ok := backends.Read(dir, ruleset.BackendAuto)
	assert.True(t, ok)
	assert.Equal(t, map[ruleset.Backend]string{nft: "tproxy: no module"}, broken)
	_, ok = backends.Read(dir, ruleset.BackendIptables)
	assert.False(t, ok)
	path := filepath.Join(dir, "backends.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, other := range []string{"{", strings.Replace(string(text), `"kernel":"`, `"kernel":"0`, 1), ""} {
		require.NoError(t, os.WriteFile(path, []byte(other), 0o600))
		_, ok = backends.Read(dir, ruleset.BackendAuto)
		assert.False(t, ok, other)
	}
	require.NoError(t, backends.Forget(dir))
	require.NoError(t, backends.Forget(dir))
	require.NoFileExists(t, path)
}
