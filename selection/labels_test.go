package selection_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/selection"
)

func TestParseSelector(t *testing.T) {
	for text, matching := range map[string]labels.Set{
		"mesh=off":                       {"mesh": "off"},
		"mesh!=on":                       {},
		"!mesh":                          {"other": ""},
		"team in (a, b),mesh notin (on)": {"team": "b", "mesh": "off"},
		"example.com/tier":               {"example.com/tier": ""},
		"mesh=":                          {"mesh": ""},
	} {
		selector, err := selection.ParseSelector(text)
		require.NoError(t, err, text)
		assert.True(t, selector.Matches(matching), text)
		assert.False(t, selector.Matches(labels.Set{"mesh": "on", "team": "c"}), text)
	}
	none, err := selection.ParseSelector("")
	require.NoError(t, err)
	assert.Nil(t, none)
}

// TestSelectorsThatAreNone: each is refused in a few words that name it.
func TestSelectorsThatAreNone(t *testing.T) {
	long := "a" + strings.Repeat(",a", 4096/2)
	for text, says := range map[string]string{
		"   ":                             `label selector "   ": requires nothing, so it would match everything`,
		"mesh==":                          "",
		"mesh in (a":                      "unable to parse requirement",
		"-mesh=off":                       "",
		"mesh=off on":                     "",
		"mesh=" + strings.Repeat("x", 64): "must be no more than 63",
		"mesh>many":                       "",
		"; rm -rf /":                      "",
		long:                              "label selector of 4097 bytes: at most 4096 are read",
	} {
		selector, err := selection.ParseSelector(text)
		if text == "mesh==" {
			require.NoError(t, err, "an empty value is a value")
			continue
		}
		require.ErrorContains(t, err, says, text)
		assert.ErrorContains(t, err, "label selector ")
		assert.Nil(t, selector)
		assert.Less(t, len(err.Error()), 4*len(text)+500, text)
	}
}

func FuzzParseSelector(f *testing.F) {
	for _, text := range []string{"mesh=off", "a in (b,c),!d", "a>1", " ", "a notin ()", "\x00=", "a=b,a=b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		selector, err := selection.ParseSelector(text)
		if err != nil || selector == nil {
			require.True(t, err != nil || text == "", "%q", text)
			return
		}
		again, err := selection.ParseSelector(selector.String())
		require.NoError(t, err, "%q", text)
		assert.Equal(t, selector.String(), again.String())
	})
}
