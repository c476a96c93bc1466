package truncate_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/internal/text/truncate"
)

func TestQuote(t *testing.T) {
	for s, want := range map[string]string{
		"":                                `""`,
		"80,81":                           `"80,81"`,
		"a\nb\x00":                        `"a\nb\x00"`,
		strings.Repeat("8", 160):          strconv.Quote(strings.Repeat("8", 160)),
		strings.Repeat("8", 161):          `"` + strings.Repeat("8", 160) + `…" (161 bytes)`,
		strings.Repeat("é", 1000):         `"` + strings.Repeat("é", 80) + `…" (2000 bytes)`,
		strings.Repeat("\x01", 100):       `"` + strings.Repeat(`\x01`, 40) + `…" (100 bytes)`,
		"ab" + strings.Repeat("\xff", 99): `"ab` + strings.Repeat(`\xff`, 39) + `…" (101 bytes)`,
	} {
		assert.Equal(t, want, truncate.Quote(s))
	}
}

func TestText(t *testing.T) {
	assert.Equal(t, "short", truncate.Text("short", 100))
	long := "first\n" + strings.Repeat("x", 1000) + "\n" + strings.Repeat("y", 120)
	assert.Equal(t, "first\n"+strings.Repeat("x", 164)+"… (1000 bytes)\n"+strings.Repeat("y", 120), truncate.Text(long, 308))
	many := strings.TrimSuffix(strings.Repeat("no such thing\n", 10_000), "\n")
	assert.Equal(t, strings.Repeat("no such thing\n", 12)+"… and 9988 more", truncate.Text(many, 1000))
}

func TestTextFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.StringN(0, 400, -1), 0, 60).Draw(t, "lines")
		limit := rapid.IntRange(400, 4000).Draw(t, "limit")
		s := strings.Join(lines, "\n")
		got := truncate.Text(s, limit)
		if len(got) > limit || utf8.ValidString(s) && !utf8.ValidString(got) {
			t.Fatalf("%d bytes of %d: %q", len(got), limit, got)
		}
	})
}

func TestList(t *testing.T) {
	assert.Equal(t, []string{}, truncate.List(nil, 100))
	assert.Equal(t, []string{"a", "b\nc"}, truncate.List([]string{"a", "b\nc"}, 100))
	many := make([]string, 1000)
	for i := range many {
		many[i] = "something\nthat is worth a warning"
	}
	got := truncate.List(many, 1000)
	assert.Len(t, got, 13)
	assert.Equal(t, "something that is worth a warning", got[0])
	assert.Equal(t, "… and 988 more", got[12])
}

type setting struct{ name, wrong string }

func (s *setting) Setting() string { return s.name }
func (s *setting) Error() string   { return s.name + "=" + truncate.Quote(s.wrong) + ": no good" }

func TestErrorKeepsNames(t *testing.T) {
	var errs []error
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("annotation mesh.io/ports-%02d", i))
	}
	for _, part := range []string{"uid", "redirect.inbound.ports"} {
		names = append(names, "annotation mesh.io/config."+part)
	}
	for _, name := range names {
		errs = append(errs, &setting{name, strings.Repeat(name, 50)})
	}
	err := fmt.Errorf("mesh configuration of pod shop/cart: %w", errors.Join(errs...))
	assert.Equal(t, err.Error(), truncate.Error(err, 16<<10), "whole where it fits")
	for _, limit := range []int{5000, 2500, 1000} {
		got := truncate.Error(err, limit)
		assert.LessOrEqual(t, len(got), limit)
		assert.True(t, strings.HasPrefix(got, "mesh configuration of pod shop/cart: "), got)
		for i := range 20 {
			assert.Contains(t, got, names[i])
		}
		assert.Regexp(t, `mesh.io/config.(uid|{uid, redirect.inbound.ports})`, got)
	}
	assert.Len(t, truncate.Error(errors.New(strings.Repeat("x", 1000)), 300), 299, "an error about no setting")
}

// TestFinding: what is said of one pod has a bound, also in many lines and in characters of several bytes.
func TestFinding(t *testing.T) {
	for _, s := range []string{strings.Repeat("x", 1<<20), strings.Repeat("é\n", 1<<18), "short"} {
		got := truncate.Finding(s)
		assert.LessOrEqual(t, len(got), truncate.MaxFinding)
		assert.True(t, utf8.ValidString(got))
		if len(s) > truncate.MaxFinding {
			assert.Contains(t, got, "…")
		} else {
			assert.Equal(t, s, got)
		}
	}
}
