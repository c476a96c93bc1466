package status_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/status"
)

// constants returns the values of the package's constants of a type, by their names.
func constants(t *testing.T, typ string) map[string]string {
	t.Helper()
	all := map[string]string{}
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if declared, ok := spec.Type.(*ast.Ident); ok && declared.Name == typ {
				value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				require.NoError(t, err)
				all[spec.Names[0].Name] = value
			}
			return true
		})
	}
	require.NotEmpty(t, all)
	return all
}

// TestTable: each code has its row, each row its code, and each says what a person needs.
func TestTable(t *testing.T) {
	t.Parallel()
	declared, rows := constants(t, "Code"), status.Table()
	kinds, states := constants(t, "Kind"), constants(t, "State")
	assert.Len(t, status.States(), len(states))
	type key struct {
		kind status.Kind
		code status.Code
	}
	seen := map[key]bool{}
	for _, r := range rows {
		assert.False(t, seen[key{r.Kind, r.Code}], "two rows of %s %s", r.Kind, r.Code)
		seen[key{r.Kind, r.Code}] = true
		assert.Contains(t, kinds, "Kind"+string(r.Kind[0]-'a'+'A')+string(r.Kind[1:]))
		if r.Kind == status.KindAlert {
			assert.Regexp(t, `^Meshcni([A-Z][a-z]+)+$`, r.Code)
		} else {
			assert.Regexp(t, `^[a-z0-9]+(-[a-z0-9]+)*$`, r.Code)
		}
		assert.Regexp(t, `^\S.*[^.]$`, r.Sentence, r.Code)
		assert.NotContains(t, r.Sentence, ". ", "%s: a clause", r.Code)
		assert.Regexp(t, `^[a-z]+\.md#[a-z0-9-]+$`, r.Page, r.Code)
		assert.False(t, r.Attention && len(r.Do) == 0, "%s needs attention, and nothing says what to do", r.Code)
		for _, do := range r.Do {
			assert.Regexp(t, `^[A-Z].*[^.?]$`, do, r.Code)
		}
		for _, s := range r.States {
			assert.Contains(t, status.States(), s)
		}
		again, ok := status.Lookup(r.Kind, r.Code)
		assert.True(t, ok)
		assert.Equal(t, r, again)
		assert.Contains(t, status.Rows(r.Code), r)
		assert.Contains(t, status.Codes(r.Kind), r.Code)
	}
	for name, value := range declared {
		assert.NotEmpty(t, status.Rows(status.Code(value)), "%s has no row", name)
	}
	_, ok := status.Lookup(status.KindPod, "of-a-newer-agent")
	assert.False(t, ok)
}

// TestTableIsACopy: whoever changes what is looked up changes nothing for others.
func TestTableIsACopy(t *testing.T) {
	t.Parallel()
	status.Table()[0].States[0] = "spoiled"
	assert.Equal(t, status.StateCaptured, status.Table()[0].States[0])
}

func TestNeedsAttention(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state  status.State
		reason status.Code
		want   bool
	}{
		{status.StateCaptured, "recorded", false},
		{status.StateCaptured, "of-a-newer-agent", false},
		{status.StateOutside, "released", false},
		{status.StateOutside, "other-dialect", true},
		{status.StateOutside, "no-proxy", false}, // there it is a pod without a proxy container
		{status.StateDrifted, "rules", true},
		{status.StateDrifted, "of-a-newer-agent", true},
		{status.StateFailed, status.CodeNotCalled, true},
		{status.StateWaiting, "no-proxy", true},
		{status.StateWaiting, "of-a-newer-agent", true},
		{status.StateUnknown, "no-trace", false},
		{status.StateUnknown, "dialect", true},
		{"of-a-newer-agent", "of-a-newer-agent", false},
	} {
		assert.Equal(t, c.want, status.Pod{State: c.state, Reason: c.reason}.NeedsAttention(), "%s %s", c.state, c.reason)
	}
}

// TestPodJSON: each field of a pod is there and comes back, in camelCase.
func TestPodJSON(t *testing.T) {
	t.Parallel()
	full := status.Pod{
		ID: status.ID{Namespace: "shop", Name: "cart", UID: "u1"}, Dialect: "istio", State: status.StateDrifted, Reason: "rules", Detail: "one is gone",
		Since: time.Unix(1e9, 0).UTC(), Backend: "nftables", Bypasses: []string{"ipv6"}, ExchangeResets: "the kernel is old", ConntrackPercent: 97,
	}
	fields := reflect.ValueOf(full)
	for i := range fields.NumField() {
		assert.False(t, fields.Field(i).IsZero(), "%s is not looked at", fields.Type().Field(i).Name)
	}
	text, err := json.Marshal(full)
	require.NoError(t, err)
	var keys map[string]any
	require.NoError(t, json.Unmarshal(text, &keys))
	for key := range keys {
		assert.Regexp(t, regexp.MustCompile(`^[a-z]+([A-Z][a-z]*)*$`), key)
	}
	var back status.Pod
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, full, back)
}
