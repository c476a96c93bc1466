// Package status is the vocabulary in which every program says how a pod's redirection is.
//
// A [State] answers the first question: is the pod captured? A [Code] says why, and never changes. Whoever finds something out sets
// the code; whoever prints it looks up its [Row]: the sentence, what to do about it, whether somebody has to, and the page that says
// more. A program can meet a code that it has no row for, of a newer agent or of a mesh of somebody's own. It shows the code as it is.
//
// The package needs the standard library only.
package status
