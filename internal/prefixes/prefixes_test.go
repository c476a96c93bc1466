package prefixes_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/internal/prefixes"
)

func list(texts ...string) (all []netip.Prefix) {
	for _, s := range texts {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func TestMerge(t *testing.T) {
	in := list("10.1.0.7/16", "192.168.0.0/24", "10.0.0.0/8", "10.0.0.0/8", "192.168.1.0/24")
	assert.Equal(t, list("10.0.0.0/8", "192.168.0.0/24", "192.168.1.0/24"), prefixes.Merge(in))
	assert.Equal(t, "10.1.0.7/16", in[0].String(), "the argument is left as it was")
	assert.Empty(t, prefixes.Merge(nil))
}

func TestRun(t *testing.T) {
	all := list("10.0.0.0/32", "10.0.0.1/32", "10.0.0.2/31", "10.0.0.5/32")
	first, last := prefixes.Run(all, 1)
	assert.Equal(t, list("10.0.0.0/32", "10.0.0.2/31"), []netip.Prefix{first, last})
	first, last = prefixes.Run(all, 3)
	assert.Equal(t, list("10.0.0.5/32", "10.0.0.5/32"), []netip.Prefix{first, last})
	assert.Equal(t, "10.0.0.3", prefixes.Last(all[2]).String())
}

// TestMergeHoldsTheSame: a merged list is in order, and holds the addresses of the list that it was made of.
func TestMergeHoldsTheSame(t *testing.T) {
	address := rapid.Custom(func(t *rapid.T) netip.Addr {
		return netip.AddrFrom4([4]byte{10, 0, rapid.Byte().Draw(t, "third") & 3, rapid.Byte().Draw(t, "fourth")})
	})
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		return netip.PrefixFrom(address.Draw(t, "address"), rapid.IntRange(20, 32).Draw(t, "bits"))
	})
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(prefix, 0, 40).Draw(t, "prefixes")
		merged := prefixes.Merge(all)
		assert.True(t, prefixes.Merged(merged))
		a, in := address.Draw(t, "address"), false
		for _, p := range all {
			in = in || p.Contains(a)
		}
		at := prefixes.Find(merged, a)
		assert.Equal(t, in, at >= 0)
		assert.True(t, at < 0 || merged[at].Contains(a))
	})
}
