// Package rulesettest tests what a firewall program means, not how it reads:
// one line says where a packet must end up, without a kernel and without root.
//
//	rules := rulesettest.New(t, myMesh.MustRuleset(), "10.244.1.5")
//	rules.Table(`
//		out tcp uid 1000 -> 10.0.0.1:443  => redirect 15001
//		out tcp uid 1337 -> 10.0.0.1:443  => pass
//		in  tcp -> 10.244.1.5:22          => pass
//	`)
//
// A failure shows the verdict, the reason and each rule that the packet met. [Golden] keeps a program's whole text
// under review. The answers are package trace's, and so are the limits: a rule that it does not model fails the test.
package rulesettest
