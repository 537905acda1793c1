package watch

const QuietPause = quietPause
