//! Specifications of the 40 arithmetic functions, in the benchmark's layout.
//!
//! A specification names parameters `arg_0` and `arg_1`, whatever their names in Python, and one
//! output, `result`. Its types are what the function accepts: `sqrt` and `factorial` refuse floats.

use tooltune_json::python::{PyDict, PyValue};

use super::math_tools::{MathTool, math_tools};
use super::row::ToolSpec;

/// The type and the description of a parameter or an output.
type Described = (&'static str, &'static str);

/// The name, description, parameters and output of a function.
type Specified = (&'static str, &'static str, &'static [Described], Described);

const NUMBER: &str = "int or float";
const INTEGER: &str = "int";
const FLOAT: &str = "float";
const NUMBERS: &str = "list of int or float";

/// The specifications of all 40 functions, in the order of [`math_tools`].
///
/// # Source
///
/// The layout of NESTFUL, figure 3.
pub fn math_tool_specs() -> Vec<ToolSpec> {
    math_tools().iter().filter_map(MathTool::spec).collect()
}

impl MathTool {
    /// The specification of the function; every function has one.
    pub(super) fn spec(&self) -> Option<ToolSpec> {
        let (name, about, parameters, result) =
            SPECIFIED.iter().find(|(name, ..)| *name == self.name)?;
        let names = (0..parameters.len()).map(|number| format!("arg_{number}"));
        let names: Vec<String> = names.collect();
        let parameters = names.iter().cloned().zip(parameters.iter().map(described));
        let outputs = [("result".to_owned(), described(result))];
        let spec = [
            ("name".to_owned(), PyValue::Text((*name).to_owned())),
            ("description".to_owned(), PyValue::Text((*about).to_owned())),
            ("parameters".to_owned(), PyValue::Dict(parameters.collect())),
            (
                "output_parameters".to_owned(),
                PyValue::Dict(outputs.into_iter().collect()),
            ),
        ];
        Some(ToolSpec {
            name: (*name).to_owned(),
            parameters: names,
            outputs: vec!["result".to_owned()],
            spec: PyValue::Dict(PyDict::from_iter(spec)),
        })
    }
}

fn described((kind, about): &Described) -> PyValue {
    let fields = [("description", about), ("type", kind)];
    let fields = fields.map(|(key, text)| (key.to_owned(), PyValue::Text((*text).to_owned())));
    PyValue::Dict(PyDict::from_iter(fields))
}

static SPECIFIED: [Specified; 40] = [
    (
        "add",
        "The sum of two numbers.",
        &[(NUMBER, "First summand."), (NUMBER, "Second summand.")],
        (NUMBER, "The sum."),
    ),
    (
        "subtract",
        "The difference of two numbers.",
        &[
            (NUMBER, "The number to subtract from."),
            (NUMBER, "The number to subtract."),
        ],
        (NUMBER, "The difference."),
    ),
    (
        "multiply",
        "The product of two numbers.",
        &[(NUMBER, "First factor."), (NUMBER, "Second factor.")],
        (NUMBER, "The product."),
    ),
    (
        "divide",
        "The quotient of two numbers.",
        &[(NUMBER, "Dividend."), (NUMBER, "Divisor, not 0.")],
        (FLOAT, "The quotient."),
    ),
    (
        "power",
        "A number raised to a power.",
        &[(NUMBER, "Base."), (NUMBER, "Exponent.")],
        (NUMBER, "The power."),
    ),
    (
        "remainder",
        "The remainder of a division, with the sign of the divisor.",
        &[(NUMBER, "Dividend."), (NUMBER, "Divisor, not 0.")],
        (NUMBER, "The remainder."),
    ),
    (
        "reminder",
        "The remainder of a division, the same function as remainder.",
        &[(NUMBER, "Dividend."), (NUMBER, "Divisor, not 0.")],
        (NUMBER, "The remainder."),
    ),
    (
        "inverse",
        "The reciprocal of a number.",
        &[(NUMBER, "A number, not 0.")],
        (FLOAT, "1 divided by the number."),
    ),
    (
        "negate",
        "A number with the opposite sign.",
        &[(NUMBER, "A number.")],
        (NUMBER, "The negated number."),
    ),
    (
        "negate_prob",
        "The probability that an event does not occur.",
        &[(NUMBER, "Probability of the event, from 0 to 1.")],
        (NUMBER, "Probability of the complement."),
    ),
    (
        "floor",
        "The largest integer that is not larger than a number.",
        &[(NUMBER, "A number.")],
        (INTEGER, "The integer."),
    ),
    (
        "sqrt",
        "The square root of an integer, rounded down to an integer.",
        &[(INTEGER, "An integer, at least 0.")],
        (INTEGER, "The rounded square root."),
    ),
    (
        "square_edge_by_area",
        "The side length of a square with a given area.",
        &[(NUMBER, "Area of the square.")],
        (FLOAT, "Side length."),
    ),
    (
        "log",
        "A logarithm, without its decimal places.",
        &[
            (NUMBER, "A number above 0."),
            (NUMBER, "Base of the logarithm; e if it is left out."),
        ],
        (INTEGER, "The truncated logarithm."),
    ),
    (
        "factorial",
        "The product of all integers from 1 to n.",
        &[(INTEGER, "n, at least 0.")],
        (INTEGER, "The factorial."),
    ),
    (
        "permutation",
        "The number of ordered selections of r out of n items.",
        &[
            (INTEGER, "n, the number of items."),
            (INTEGER, "r, the number of selected items."),
        ],
        (INTEGER, "The number of selections."),
    ),
    (
        "choose",
        "The number of selections of r out of n items, in any order.",
        &[
            (INTEGER, "n, the number of items."),
            (INTEGER, "r, the number of selected items."),
        ],
        (INTEGER, "The number of selections."),
    ),
    (
        "gcd",
        "The greatest common divisor of two numbers, without their decimal places.",
        &[(NUMBER, "First number."), (NUMBER, "Second number.")],
        (INTEGER, "The greatest common divisor."),
    ),
    (
        "lcm",
        "The least common multiple of two numbers.",
        &[(NUMBER, "First number."), (NUMBER, "Second number.")],
        (NUMBER, "The least common multiple."),
    ),
    (
        "max_number",
        "The largest of several numbers.",
        &[(NUMBERS, "At least one number.")],
        (NUMBER, "The largest number."),
    ),
    (
        "min_number",
        "The smallest of several numbers.",
        &[(NUMBERS, "At least one number.")],
        (NUMBER, "The smallest number."),
    ),
    (
        "speed",
        "The average speed over a distance.",
        &[(NUMBER, "Distance."), (NUMBER, "Time, not 0.")],
        (FLOAT, "Distance divided by time."),
    ),
    (
        "rectangle_area",
        "The area of a rectangle.",
        &[(NUMBER, "Length."), (NUMBER, "Width.")],
        (NUMBER, "Area."),
    ),
    (
        "rectangle_perimeter",
        "The perimeter of a rectangle.",
        &[(NUMBER, "Length."), (NUMBER, "Width.")],
        (NUMBER, "Perimeter."),
    ),
    (
        "square_area",
        "The area of a square.",
        &[(NUMBER, "Side length.")],
        (NUMBER, "Area."),
    ),
    (
        "square_perimeter",
        "The perimeter of a square.",
        &[(NUMBER, "Side length.")],
        (NUMBER, "Perimeter."),
    ),
    (
        "square_edge_by_perimeter",
        "The side length of a square with a given perimeter.",
        &[(NUMBER, "Perimeter of the square.")],
        (FLOAT, "Side length."),
    ),
    (
        "triangle_area",
        "The area of a triangle.",
        &[(NUMBER, "Base."), (NUMBER, "Height above the base.")],
        (FLOAT, "Area."),
    ),
    (
        "rhombus_area",
        "The area of a rhombus.",
        &[(NUMBER, "First diagonal."), (NUMBER, "Second diagonal.")],
        (FLOAT, "Area."),
    ),
    (
        "circle_area",
        "The area of a circle.",
        &[(NUMBER, "Radius.")],
        (FLOAT, "Area."),
    ),
    (
        "circumface",
        "The circumference of a circle.",
        &[(NUMBER, "Radius.")],
        (FLOAT, "Circumference."),
    ),
    (
        "diagonal",
        "The diagonal of a rectangle.",
        &[(NUMBER, "Length."), (NUMBER, "Width.")],
        (FLOAT, "Length of the diagonal."),
    ),
    (
        "volume_cube",
        "The volume of a cube.",
        &[(NUMBER, "Edge length.")],
        (NUMBER, "Volume."),
    ),
    (
        "surface_cube",
        "The surface area of a cube.",
        &[(NUMBER, "Edge length.")],
        (NUMBER, "Surface area."),
    ),
    (
        "cube_edge_by_volume",
        "The edge length of a cube with a given volume.",
        &[(NUMBER, "Volume of the cube.")],
        (FLOAT, "Edge length."),
    ),
    (
        "volume_sphere",
        "The volume of a sphere.",
        &[(NUMBER, "Radius.")],
        (FLOAT, "Volume."),
    ),
    (
        "surface_sphere",
        "The surface area of a sphere.",
        &[(NUMBER, "Radius.")],
        (FLOAT, "Surface area."),
    ),
    (
        "volume_cylinder",
        "The volume of a cylinder.",
        &[(NUMBER, "Radius of the base."), (NUMBER, "Height.")],
        (FLOAT, "Volume."),
    ),
    (
        "surface_cylinder",
        "The surface area of a closed cylinder.",
        &[(NUMBER, "Radius of the base."), (NUMBER, "Height.")],
        (FLOAT, "Surface area."),
    ),
    (
        "volume_cone",
        "The volume of a cone.",
        &[(NUMBER, "Radius of the base."), (NUMBER, "Height.")],
        (FLOAT, "Volume."),
    ),
];
